"""What `accsd doctor` looks at. Each check yields findings; what it raises is one, too."""
