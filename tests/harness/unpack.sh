#!/bin/sh
# Unpacks packages of another release of Debian, with all that they need, into FOLDER, and installs
# nothing. The mirror is that of this machine.
#
#   sh unpack.sh RELEASE FOLDER PACKAGE...
set -eu
release=$1 folder=$2
shift 2

. /etc/os-release
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' \
	| awk -v ours="$VERSION_CODENAME" '$2 == ours { print $1; exit }')
keys=/usr/share/keyrings/debian-archive-keyring.gpg
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt reads as another user
mkdir -p "$work/lists/partial" "$work/archives/partial"
touch "$work/status"
echo "deb [signed-by=$keys] $mirror $release main" >"$work/sources.list"

# As on a machine on which nothing is installed, and on which nothing will be.
apt() {
	apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
		-o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o Dir::State="$work" \
		-o Dir::State::status="$work/status" -o Dir::Cache="$work" -o Debug::NoLocking=true "$@"
}
apt update
apt install --yes --download-only --no-install-recommends "$@"
rm -rf "$folder"
mkdir -p "$folder"
for package in "$work"/archives/*.deb; do
	dpkg-deb --extract "$package" "$folder"
done
