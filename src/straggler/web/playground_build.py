"""x"""
SIMULATION_SCRIPTS = ("play_random.js", "play_cluster.js", "play_policies.js", "play_simulation.js")
