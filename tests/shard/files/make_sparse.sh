#!/bin/sh
# Writes the sparse-*.tar files with GNU tar (made with version 1.34): a file with five islands of 4 KiB, more
# than the four that an old header has room for, and one more member behind it.
set -e
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
cd "$folder"
truncate -s 1000000 a.bin
for island in 1 2 3 4 5; do
    yes "$island" | head -c 4096 | dd of=a.bin bs=4096 seek=$((island * 20)) conv=notrunc status=none
done
printf 'text' > a.txt
pack() { name=$1; shift; tar -b 1 --sparse --mtime=@0 --owner=0 --group=0 --numeric-owner "$@" -cf "$here/sparse-$name.tar" a.bin a.txt; }
pack old --format=gnu
pack 0.0 --format=pax --sparse-version=0.0
pack 0.1 --format=pax --sparse-version=0.1
pack 1.0 --format=pax --sparse-version=1.0
rm -r "$folder"
