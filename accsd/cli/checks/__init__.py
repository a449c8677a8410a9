"""What `accsd doctor` looks at. Each check yields findings; an error that it raises is a finding, too."""
