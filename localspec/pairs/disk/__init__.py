"""What is on this disk: installed pairs, the starter, other programs' models, and our folders."""
