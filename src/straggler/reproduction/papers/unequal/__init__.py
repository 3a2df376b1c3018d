"""Unequal data: which method learns the classes of slow workers?"""
