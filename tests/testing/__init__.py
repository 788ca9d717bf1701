"""What we give to others for their tests."""
