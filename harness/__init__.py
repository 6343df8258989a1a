"""What an agent harness is, and how it evolves. Imports no torch, ray or vllm."""
