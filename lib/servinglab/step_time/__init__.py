"""How long does one engine step take: given, or fitted to measured steps?"""
