"""Importers of control flow.

``subgraphs`` has If and the bodies of all three operators, ``loops`` Loop and Scan, and
``loop_state`` the trips of a Loop and the values that it carries.
"""
