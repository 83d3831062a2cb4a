# Prints the lines of make cell-test, and at the end their figures in one line. It fails if a test
# does, or is skipped.
{ print }
/figures:/ {
	for (i = 2; i <= NF; i++) {
		if ($i ~ /^requests/ && $(i - 1) ~ /^[0-9]+$/) requests += $(i - 1)
		if (i > 2 && $i ~ /^failed/ && $(i - 1) ~ /^[0-9]+$/ && $(i - 2) != "version") failed += $(i - 1)
	}
}
/^--- PASS/ { passed++ }
/^(--- )?FAIL|^--- SKIP|^panic/ { bad = 1 }
END {
	printf "cell-test: %d tests passed, %d requests, %d failed: %s\n", passed, requests, failed, bad || !passed ? "FAILED" : "ok"
	exit bad || !passed
}
