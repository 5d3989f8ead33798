"""Never reached."""
