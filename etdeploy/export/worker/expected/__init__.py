"""What a language model gives eagerly, before and after it is quantised."""
