"""What a night exports and builds once, as parcels; one attempt on one device."""
