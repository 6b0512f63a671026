"""What a run would do, known before it starts: jobs, requests, hours and cost."""
