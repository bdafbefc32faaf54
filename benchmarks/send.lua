-- One send of Service Bus REST, again and again: wrk -s send.lua URL -- TOKEN
-- The last line of the output is JSON; times are microseconds.

function init(arguments)
   wrk.method = "POST"
   wrk.body = string.rep("x", 1024)
   wrk.headers["Authorization"] = arguments[1]
   wrk.headers["Content-Type"] = "application/atom+xml;type=entry;charset=utf-8"
   wrk.headers["BrokerProperties"] = '{"Label":"benchmark"}'
   wrk.headers["priority"] = '"high"'
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"answers":%d,"errors":%d,"duration":%d,"p50":%d,"p99":%d}\n',
      summary.requests,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout,
      summary.duration,
      latency:percentile(50),
      latency:percentile(99)
   ))
end
