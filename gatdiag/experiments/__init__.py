"""Experiments: what gatdiag can run by itself.

- `data`: named graphs, one of them built in
- `models`: graph neural networks as the papers build them
"""
