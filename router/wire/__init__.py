"""What crosses a socket: errors, replica reports, event streams, request bodies."""
