"""How far from real engines is the simulator?"""
