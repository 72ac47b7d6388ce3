-- What wrk sends, and what it found, as JSON. From the environment: LOAD_METHOD, LOAD_PATHS (in turn),
-- LOAD_TOKEN, LOAD_BODY, in which NUMBER is the number of the request.
local method, token, body = os.getenv("LOAD_METHOD"), os.getenv("LOAD_TOKEN"), os.getenv("LOAD_BODY")
local headers, paths, number = {}, {}, 0
if token then headers["Authorization"] = "Bearer " .. token end
if body then headers["Content-Type"] = "application/json" end
for path in os.getenv("LOAD_PATHS"):gmatch("%S+") do paths[#paths + 1] = path end

function request()
    number = number + 1
    local text = body and body:gsub("NUMBER", tostring(number))
    return wrk.format(method, paths[number % #paths + 1], headers, text)
end

function done(summary, latency)
    local e = summary.errors
    io.write(string.format(
        '\n{"requests": %d, "microseconds": %d, "p50": %d, "p99": %d, "errors": %d}\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
        e.connect + e.read + e.write + e.status + e.timeout))
end
