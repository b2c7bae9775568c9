"""What can be built here, with what, and how: see docs/build.md. Importing this touches no file and starts nothing."""
