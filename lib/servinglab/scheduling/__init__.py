"""Who is in the next step?"""
