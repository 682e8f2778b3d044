"""What clients and providers say on the wire: requests, their keys, and what answers mean."""
