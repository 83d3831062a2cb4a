#!/bin/sh
# Asks the digit classifier with curl: ./infer.sh [URL]
set -eu
url=${1:-http://localhost:8000}
pixels=$(sed 's/.*\[\[\(.*\)\]\].*/\1/' "$(dirname "$0")/../image-classifier/three.json")
curl -sf --retry 3 "$url/v2/models/digits/infer" -d "{
  \"inputs\": [{\"name\": \"X\", \"datatype\": \"FP32\", \"shape\": [1, 64], \"data\": [$pixels]}],
  \"outputs\": [{\"name\": \"label\"}]
}"
