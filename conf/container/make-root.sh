#!/bin/sh
# Copies into the folder $1 what Pairgate runs with: /opt/pairgate, the interpreter, the part of its library that a server uses, the
# shared libraries of all of them, and the certificate authorities. Runs where /opt/pairgate is installed.
set -eu

root=$1
python=$(readlink --canonicalize /opt/pairgate/bin/python)
library=$(/opt/pairgate/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

# Folders that are links into /usr on the system, so that each path is right in both.
mkdir -p "$root/usr/bin" "$root/usr/lib"
for name in bin lib lib64; do
    if [ -L "/$name" ]; then
        mkdir -p "$root/usr/$name"
        ln -s "usr/$name" "$root/$name"
    fi
done

copy() {
    mkdir -p "$root$(dirname "$1")"
    cp --archive "$1" "$root$1"
}

copy /opt/pairgate
rm -r "$root"/opt/pairgate/bin/[Aa]ctivate* "$root"/opt/pairgate/lib/python*/site-packages/apsw/sqlite_extra_binaries
cp "$python" "$root$python"
ln -sf "$(basename "$python")" "$root/usr/bin/python3"
copy "$library"
# Without tests, databases, graphical windows, terminals, and tools for developers.
cd "$root$library"
rm -rf config-* distutils ensurepip idlelib lib2to3 pydoc_data test tkinter turtle* unittest/test
rm -rf dbm sqlite3 xmlrpc
for name in _crypt _curses _dbm _gdbm _sqlite3 _test _tkinter _xxtest nis ossaudiodev readline; do
    rm -f "lib-dynload/$name"*
done
find . -name '*.opt-?.pyc' -delete
cd /

# Symbols for debuggers are most of some wheels.
find "$root/opt/pairgate" "$root$library" \( -name '*.so' -o -name '*.so.*' \) -type f -exec strip --strip-unneeded {} +

# Shared libraries, by the names under which the loader looks for them. libgcc_s is opened by name when a thread ends.
{
    find "$root" \( -name '*.so' -o -name '*.so.*' \) -type f
    echo "$root$python"
} | while read -r file; do
    ldd "$file" 2>/dev/null | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p'
done | sort -u > /tmp/libraries
/sbin/ldconfig -p | sed -n 's/.*libgcc_s.so.1 .*=> //p' >> /tmp/libraries
while read -r file; do
    case $file in "$root"*) continue ;; esac
    real=$(readlink --canonicalize "$file")
    mkdir -p "$root$(dirname "$file")"
    [ -e "$root$file" ] || cp "$real" "$root$file"
done < /tmp/libraries

mkdir -p "$root/etc/ssl/certs" "$root/etc/pairgate" "$root/var/lib/pairgate" "$root/tmp"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mkdir -p "$root/usr/lib/ssl"
ln -s /etc/ssl/certs "$root/usr/lib/ssl/certs"
ln -s /etc/ssl/certs/ca-certificates.crt "$root/usr/lib/ssl/cert.pem"
echo 'pairgate:x:65532:65532:Pairgate:/var/lib/pairgate:/' > "$root/etc/passwd"
echo 'pairgate:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
chown 65532:65532 "$root/var/lib/pairgate"
chmod 1777 "$root/tmp"
