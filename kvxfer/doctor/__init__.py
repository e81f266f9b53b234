"""`kvxfer doctor`: what is installed here, what works, and what two hosts can do together."""
