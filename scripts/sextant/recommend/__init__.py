"""recommend"""
