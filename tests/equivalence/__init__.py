"""Original and converted trials, trained side by side: do they give the same numbers?"""
