"""How large a subject's group gets in a batch, by how subjects lie over silos [Marathe, §5.1, §5.2 and Fig. 2].

FEMNIST's geometry, as recipes/group_sizes.toml has it: 80 % of 3,500 subjects' 145 items, 16 silos, batches of 512
drawn without replacement as the paper prints it. No images are needed, only whose item is where. The same counts are
in the figures of `wholegrain reproduce fig2` and `fig3`.

Run: python benchmarks/group_sizes.py
"""

from wholegrain_reproduction.group_sizes import count_group_sizes
from wholegrain_reproduction.recipes import load_group_sizes

SIZES = range(1, 13)


def main() -> None:
    print(f"{'placement':10}{'mean':>6}   batches whose largest group has so many items")
    print(" " * 19 + "".join(f"{size:6d}" for size in SIZES))
    for found in count_group_sizes(load_group_sizes()):
        row = "".join(f"{found.batches.get(size, '') or '':>6}" for size in SIZES)
        print(f"{found.placement:10}{found.mean:6.2f}   {row}")


if __name__ == "__main__":
    main()
