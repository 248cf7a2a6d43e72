"""The benchmark networks and their inputs."""
