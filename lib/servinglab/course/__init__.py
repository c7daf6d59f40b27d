"""What the book's pages are made of: quizzes, explorers, page helpers, the Sphinx extension."""
