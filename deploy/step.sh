# Sourced. step WHAT LOG COMMAND...: runs a command whose output goes to LOG. A terminal sees how far ninja is; a
# failure shows the end of the log.
step() {
  local what=$1 log=$2 command
  shift 2
  echo "$what"
  "$@" >"$log" 2>&1 &
  command=$!
  while [ -t 1 ] && kill -0 "$command" 2>/dev/null; do
    printf '\r%s\033[K' "$(tail -c 4096 "$log" | sed -n 's/^\(\[[0-9]*\/[0-9]*\]\).*/  \1/p' | tail -1)"
    sleep 0.5
  done
  [ -t 1 ] && printf '\r\033[K'
  if ! wait "$command"; then
    tail -40 "$log" >&2
    echo "$what failed; the whole log is $log" >&2
    exit 1
  fi
}
