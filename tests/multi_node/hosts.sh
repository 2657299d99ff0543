# Simulated hosts on one physical host, to be sourced: kernel namespaces with their own name, address, memory and processes,
# on a bridge, each with an ssh server; they share the file system. Call these functions inside in_namespaces
# (tests/support/namespaces.sh), which ends the hosts.
# shellcheck shell=bash

scratch=${MCPP_SCRATCH:-}
declare -A host_pids

# Creates the ssh keys, the hosts file and the bridge.
make_network() { # <host ...>
  local host number=0
  mkdir -p "$scratch/ssh"
  ssh-keygen -q -t ed25519 -N "" -f "$scratch/ssh/id_ed25519"
  cp "$scratch/ssh/id_ed25519.pub" "$scratch/ssh/authorized_keys"
  echo "127.0.0.1 localhost" >"$scratch/hosts"
  for host in "$@"; do
    number=$((number + 1))
    echo "10.77.0.$number $host" >>"$scratch/hosts"
    dropbearkey -t ed25519 -f "$scratch/$host.key" | sed -n "s/^ssh-ed25519 /$host &/p" >>"$scratch/ssh/known_hosts"
  done 2>/dev/null
  ip link set lo up
  ip link add hub type bridge
  ip link set hub up
}

address_of() { awk -v host="$1" '$2 == host { print $1 }' "$scratch/hosts"; }

# Runs the first process of a host, which becomes its ssh server once the host has its network.
host_main() { # <host>
  hostname "$1"
  mount -t tmpfs none /dev/shm
  mount -t tmpfs -o mode=700 none ~/.ssh
  install -m 600 "$scratch"/ssh/* ~/.ssh
  mount --bind "$scratch/hosts" /etc/hosts
  until ip -brief address show dev eth0 2>/dev/null | grep -q "$(address_of "$1")"; do sleep 0.05; done
  exec dropbear -F -s -j -k -p "$(address_of "$1"):22" -r "$scratch/$1.key" -P "" 2>"$scratch/$1.sshd"
}

start_host() { # <host>
  local host=$1 unshared pid
  mkdir -p ~/.ssh
  # shellcheck disable=SC2016 # the new shell expands it
  unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc \
    bash -c 'source "$1"; host_main "$2"' bash "${BASH_SOURCE[0]}" "$host" &
  unshared=$!
  until pid=$(pgrep -P "$unshared"); do sleep 0.02; done
  until [ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
  host_pids[$host]=$pid
  # The hardware address never changes, as other hosts cache it.
  ip link add "to_$host" type veth peer name eth0 netns "$pid" address "02:00:00:00:00:0$(address_of "$host" | cut -d. -f4)"
  ip link set "to_$host" master hub up
  nsenter --target "$pid" --net sh -c "ip link set lo up && ip address add $(address_of "$host")/24 dev eth0 && ip link set eth0 up"
  until on_host "$host" ssh -o BatchMode=yes "$host" true 2>/dev/null; do sleep 0.1; done
}

# Ends all processes of a host, and with them its network.
kill_host() { # <host>
  kill -KILL "${host_pids[$1]}"
  while [ -d "/proc/${host_pids[$1]}" ]; do sleep 0.02; done
}

# Disconnects the cable: both sides only stop receiving data.
unplug_host() { ip link set "to_$1" down; }
plug_host() { ip link set "to_$1" up; }

on_host() { # <host> <command ...>
  local host=$1
  shift
  nsenter --target "${host_pids[$host]}" --wdns="$PWD" --net --uts --ipc --mount --pid "$@"
}
