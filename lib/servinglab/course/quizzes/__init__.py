"""The numbers of the chapters' quizzes, one module a chapter; `servinglab.course.quiz` says how."""
