"""Who comes, when, and how long are their prompts and answers?"""
