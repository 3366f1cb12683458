"""How does a verdict become a bug report? The smallest case, a script that shows it, an archive to attach."""
