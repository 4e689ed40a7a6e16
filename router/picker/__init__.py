"""The endpoint picker: answers an Envoy, request by request, with the replica to send it to."""
