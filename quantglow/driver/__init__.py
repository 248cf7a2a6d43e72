"""The user's calls: the main job, its stages, compiling and loading.

Nothing is imported here: a process that loads a saved model needs little of this.
"""
