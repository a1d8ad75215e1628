"""Idioms: other systems' coordination, written with tokens in user code only."""
