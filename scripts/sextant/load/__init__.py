"""The load client: requests to an OpenAI-compatible server, and when each token came."""
