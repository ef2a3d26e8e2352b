#!/bin/sh
# Makes the keys of a job of kubernetes.yaml, gives them to the cluster as a secret, and starts the job. The keys leave
# this machine again.
set -eu
here=$(dirname "$0")
ranks=$(sed -n 's/^ *completions: *//p' "$here/kubernetes.yaml")
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
millrace keys -n "$ranks" --out "$keys/train"
kubectl create secret generic train-keys --from-file="$keys/train"
kubectl apply -f "$here/kubernetes.yaml"
