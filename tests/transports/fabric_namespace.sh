#!/bin/sh
# Run a command in a network namespace of its own in which libfabric's tcp provider works.
# NIXL does not take the loopback interface; a veth pair with an address of 127/8 will do,
# and nothing can leave the machine by it. Needs root, or user namespaces.
set -eu
if [ "${KVXFER_IN_NAMESPACE:-}" != 1 ]; then
    user=$([ "$(id -u)" = 0 ] || echo --map-root-user)
    exec env KVXFER_IN_NAMESPACE=1 FI_PROVIDER=tcp unshare --net $user "$0" "$@"
fi
ip link set lo up
ip link add kvx0 type veth peer name kvx1
ip address add 127.77.0.1/32 dev kvx0
ip link set kvx0 up
ip link set kvx1 up
exec "$@"
