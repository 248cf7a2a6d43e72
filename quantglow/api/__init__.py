"""The user's calls.  Nothing is imported here: loading a saved model needs little of this."""
