#!/usr/bin/env python3
"""Measures the same everyday work on three ways to use an ext4 image, in one run, and writes the table.

usage: bench.py ONGGI [--rounds N] [--out FILE]

Each round makes a fresh image with mke2fs and runs every workload on every system, one after the other;
the table has the medians, and how many times slower or faster each is than Linux in the same run.
"""
import argparse, datetime, json, os, pathlib, platform, shutil, statistics, subprocess, sys, tempfile, time

SIZE = "3G"
TREE = "/usr/include"


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)


class System:
    def __init__(self, name, mount, unmount):
        self.name, self.mount, self.unmount = name, mount, unmount


def systems(onggi):
    def onggi_unmount(directory):
        run(onggi, "umount", directory)

    def fuse2fs_unmount(directory):
        run("fusermount3", "-u", directory)
        while subprocess.run(["pgrep", "-x", "fuse2fs"], stdout=subprocess.DEVNULL).returncode == 0:
            time.sleep(0.02)

    return [
        System("Onggi", lambda image, d: run(onggi, "mount", image, d), onggi_unmount),
        System("Linux ext4, loop", lambda image, d: run("mount", "-o", "loop", image, d), lambda d: run("umount", d)),
        System("fuse2fs", lambda image, d: run("fuse2fs", image, d, "-o", "fakeroot"), fuse2fs_unmount),
    ]


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cold():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


def sync_of(path):
    """What makes everything below durable on every one of the three: fsync each file's directory and syncfs."""
    run("sync", "-f", path)


def tree_in(d):
    run("cp", "-a", TREE, d + "/tree")
    sync_of(d)


def creates(d):
    os.mkdir(d + "/many")
    fd = os.open(d + "/many", os.O_RDONLY)
    for index in range(10_000):
        os.close(os.open(f"name{index}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.fsync(fd)
    os.close(fd)


def write_big(d):
    run("dd", "if=/dev/zero", "of=" + d + "/big", "bs=1M", "count=768", "conv=fsync")


def appends(d):
    with open(d + "/log", "wb", buffering=0) as file:
        for _ in range(500):
            file.write(b"x" * 4096)
            os.fsync(file.fileno())


def overwrites(d):
    fd = os.open(d + "/big", os.O_WRONLY)
    for index in range(100_000):
        os.pwrite(fd, b"y" * 4096, index % 16 * 4096)
    os.close(fd)


def read_tree(d):
    run("sh", "-c", f"tar cf - -C {d} tree | cat > /dev/null")


def read_big(d):
    run("dd", "if=" + d + "/big", "of=/dev/null", "bs=1M")


def remove_tree(d):
    run("rm", "-rf", d + "/tree")
    sync_of(d)


# name, unit, work per second (None: seconds), cold first, workload
WORKLOADS = [
    (f"cp -a {TREE}, sync", None, False, tree_in),
    ("create 10,000 files in one directory, fsync it", None, False, creates),
    ("write 768 MiB, fsync (MB/s)", 768 * 1.048576, False, write_big),
    ("append 4 KiB and fsync (per second)", 500, False, appends),
    ("buffered 4 KiB overwrite (per second)", 100_000, False, overwrites),
    ("read the tree, cold", None, True, read_tree),
    ("read 768 MiB, cold (MB/s)", 768 * 1.048576, True, read_big),
    ("rm -rf the tree, sync", None, False, remove_tree),
]


def measure(system, folder):
    image, directory = folder + "/disk.img", folder + "/mnt"
    os.makedirs(directory, exist_ok=True)
    if os.path.exists(image):
        os.unlink(image)
    run("mke2fs", "-q", "-t", "ext4", image, SIZE)
    results = []
    system.mount(image, directory)
    for name, _, is_cold, workload in WORKLOADS:
        if is_cold:
            system.unmount(directory)
            cold()
            system.mount(image, directory)
        seconds = timed(lambda: workload(directory))
        results.append(seconds)
        print(f"  {system.name:18} {name:48} {seconds:8.3f} s", flush=True)
    system.unmount(directory)
    checked = subprocess.run(["e2fsck", "-fn", image], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if checked.returncode != 0:
        print(f"  {system.name}: e2fsck -fn says {checked.returncode}:\n{checked.stdout}", flush=True)
    return results, checked.returncode == 0


def figure(seconds, per_second):
    if per_second is None:
        return f"{seconds:.2f} s"
    rate = per_second / seconds
    return f"{rate:,.0f}"


def table(names, medians):
    lines = ["| workload | " + " | ".join(names) + " | Onggi / Linux | Onggi / fuse2fs |", "|---|" + "---:|" * (len(names) + 2)]
    for row, (name, per_second, _, _) in enumerate(WORKLOADS):
        cells = [figure(medians[system][row], per_second) if medians[system] else "–" for system in names]
        ratios = [
            f"{medians[other][row] / medians['Onggi'][row]:.2f}" if medians[other] else "–"
            for other in names if other != "Onggi"
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("onggi")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", default="docs/BENCHMARKS.md")
    options = parser.parse_args()
    onggi = os.path.realpath(options.onggi)
    folder = tempfile.mkdtemp(prefix="onggi-bench.")
    names, rounds, clean = [], {}, {}
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            for system in systems(onggi):
                if system.name not in names:
                    names.append(system.name)
                try:
                    results, is_clean = measure(system, folder)
                    rounds.setdefault(system.name, []).append(results)
                    clean[system.name] = clean.get(system.name, True) and is_clean
                except subprocess.CalledProcessError as error:
                    print(f"  {system.name}: left out: {error} {error.stderr.decode().strip()}", flush=True)
                    subprocess.run(["umount", "-l", folder + "/mnt"], stderr=subprocess.DEVNULL)
    finally:
        subprocess.run(["umount", "-l", folder + "/mnt"], stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)
    medians = {
        name: [statistics.median(column) for column in zip(*rounds[name])] if rounds.get(name) else None
        for name in names
    }
    text = table(names, medians)
    print(text)
    cores = os.cpu_count()
    head = f"""# Benchmarks

`make bench` (root, for loop mounts and cold caches) makes this page: the same work on a fresh {SIZE} image made by
mke2fs, used through Onggi's mount, through Linux's own ext4 on a loop device and through fuse2fs, one after the
other in one run, {options.rounds} rounds, medians. The last two columns say how many times faster (above 1) or slower
(below 1) Onggi is. Machines are noisy: read ratios, not seconds.

{datetime.date.today()}, Linux {platform.release().split('-')[0]}, {cores} cores. e2fsck -fn after each round: """
    head += ", ".join(f"{name} {'clean' if ok else 'NOT clean'}" for name, ok in clean.items()) + ".\n\n"
    notes = """
What the rows mean
- *sync* is syncfs on the mount. A FUSE server is not told of it by the kernel (only of the pages it writes back),
  so for Onggi and fuse2fs those two rows end when the server has the data, not when the disk has; the fsync rows
  end when the disk has it on all three.
- *buffered 4 KiB overwrite*: one thread, 16 blocks over and over. It never leaves the kernel's page cache where the
  mount has writeback caching (Onggi, Linux); fuse2fs takes a round trip each.
- Linux reads and writes the image through a buffered loop device, so its *cold* rows start with cold caches on both
  levels, as the others' do.
"""
    path = pathlib.Path(options.out)
    path.write_text(head + text + "\n" + notes)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
