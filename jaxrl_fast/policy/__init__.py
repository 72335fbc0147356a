"""A trained policy: acting, files, export."""
