"""The wheel as others get it: `make release-test`. `make test` leaves this folder out, because it needs the wheel."""
