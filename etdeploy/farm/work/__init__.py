"""What a night exports and builds once, as artifacts; one attempt on one device."""
