"""Benchmarks: each module measures one thing and has a `main(argv)` behind ``jeton bench NAME``.

They use only the public API. Figures are ratios measured in one run: the machine is noisy. To add
one, write a function with annotated parameters in a module of its own, pass it to
`harness.command`, and name it in `jeton_evaluation.commands`.
"""
