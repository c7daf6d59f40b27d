"""The numbers of the chapters' quizzes, one module a chapter; `servinglab.quiz` says how."""
