#!/bin/sh
# Makes the keys of the job in kubernetes.yaml, stores them in the cluster as a secret, and starts the job. It removes
# the keys from this machine.
set -eu
here=$(dirname "$0")
ranks=$(sed -n 's/^ *completions: *//p' "$here/kubernetes.yaml")
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
millrace keys -n "$ranks" --out "$keys/train"
kubectl create secret generic train-keys --from-file="$keys/train"
kubectl apply -f "$here/kubernetes.yaml"
