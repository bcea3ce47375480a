#!/bin/bash
# The smoke of kcat (Debian's, over librdkafka 2.0.2). Arguments: BROKERS NAME; what they mean is said in python/smoke.py.
set -uo pipefail
brokers=$1 name=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
base_ms=1700000000000

cat_() { timeout 20 kcat -b "$brokers" -X socket.timeout.ms=10000 "$@" </dev/null; }
produce() { timeout 20 kcat -b "$brokers" -P -X message.timeout.ms=12000 "$@"; } # records come on standard input
say() { # say STATUS CAPABILITY TEXT
  echo "$1 kcat $2 $(tr -s '[:space:]' ' ' <<<"$3" | cut -c -400)"
}
check() { # check CAPABILITY FUNCTION [ARGUMENT]...: its output is the reason of a failure
  local capability=$1 text
  shift
  if text=$("$@" 2>&1); then say ok "$capability" ""; else say ERR "$capability" "$text"; fi
}
same() { # same FOUND EXPECTED
  [ "$1" = "$2" ] || { echo "found: $1 instead of: $2"; return 1; }
}

codec() { # codec NAME PARTITION
  local n value sent found
  for n in $(seq 0 49); do
    value=$(printf "value-$n %.0s" $(seq 20))
    echo "key-$n:$value"
  done >"$folder/sent"
  produce -t "$name" -p "$2" -z "$1" -K : -H n=1 -H codec=any "$folder/sent" -l || return
  found=$(cat_ -C -q -e -o beginning -t "$name" -p "$2" -f '%k:%s|%h\n') || return
  same "$found" "$(sed 's/$/|n=1,codec=any/' "$folder/sent")"
}

records() {
  printf 'null:\n' | produce -t "$name" -p 5 -K : -Z || return
  printf 'twice:x\n' | produce -t "$name" -p 5 -K : -H h=1 -H h=2 -H empty= || return
  printf 'no key\n' | produce -t "$name" -p 5 || return
  same "$(cat_ -C -q -e -o beginning -t "$name" -p 5 -f '%K %k %S %s %h\n')" \
    $'4 null -1  \n5 twice 1 x h=1,h=2,empty=\n-1  6 no key '
}

assign() {
  same "$(cat_ -C -q -e -o beginning -t "$name" -p 0 -f '%o\n' | sed -n '1p;$p' | tr '\n' ' ')" "0 49 " || return
  same "$(cat_ -C -q -e -o 25 -c 1 -t "$name" -p 0 -f '%o %k\n')" "25 key-25" || return
  same "$(cat_ -C -q -e -o -5 -c 1 -t "$name" -p 0 -f '%o %k\n')" "45 key-45"
}

timestamps() { # kcat stamps records with the present time only
  printf 'early\n' | produce -t "$name" -p 6 || return
  local then now
  then=$(cat_ -C -q -e -o beginning -t "$name" -p 6 -f '%T') || return
  until now=$(date +%s%3N) && [ "$now" -gt $((then + 1)) ]; do sleep 0.002; done
  printf 'late\n' | produce -t "$name" -p 6 || return
  same "$(cat_ -Q -t "$name:6:$((then + 1))")" "$name [6] offset 1" || return
  same "$(cat_ -Q -t "$name:6:$base_ms")" "$name [6] offset 0" || return
  same "$(cat_ -Q -t "$name:6:$((then + 3600000))")" "$name [6] offset -1"
}

member() { # member COUNT: that many records of the group's topic, in time
  cat_ -G "$name-members" -q -c "$1" -X auto.offset.reset=earliest -X heartbeat.interval.ms=500 -f '%s\n' "$name-group"
}

group() {
  local n first second partition
  for partition in 0 1 2 3; do
    for n in $(seq 10); do echo "$partition-$n"; done | produce -t "$name-group" -p "$partition" || return
  done
  first=$(member 40) || return
  same "$(sort <<<"$first" | uniq | wc -l)" 40 || return
  for partition in 0 1 2 3; do echo later | produce -t "$name-group" -p "$partition" || return; done
  second=$(member 4) || return
  same "$second" $'later\nlater\nlater\nlater'
}

cluster() {
  local found
  found=$(cat_ -L -J -t "$name") || return
  same "$(grep -o '"partition":' <<<"$found" | wc -l)" 8 || return
  same "$(grep -o '"brokers":\[[^]]*\]' <<<"$found" | grep -o '"id":' | wc -l)" 1
}

idempotent() {
  seq 50 | produce -t "$name" -p 7 -X enable.idempotence=true -X batch.num.messages=5 || return
  same "$(cat_ -C -q -e -o beginning -t "$name" -p 7 -f '%o %s\n')" "$(for n in $(seq 50); do echo "$((n - 1)) $n"; done)"
}

partition=0
for codec in none gzip snappy lz4 zstd; do
  check "$codec" codec "$codec" "$partition"
  partition=$((partition + 1))
done
check records records
check assign assign
check timestamps timestamps
check group group
check cluster cluster
check idempotent idempotent
for capability in group-admin topics configs append delete-records log-dirs; do
  say n/a "$capability" "kcat has no such command"
done
