# frozen_string_literal: true

require_relative "../test_helper"
original_or_drop_in "http_2", "http/2"
require_needed "httpx"
require_relative "../support/http_2_peers"

# httpx as it is, on top: over TLS with ALPN, with prior knowledge and upgraded from HTTP/1.1, against servers on the drop-in and on the
# original.
module HTTPXTests
  def setup
    @peer = HTTP2Peers.start(self.class::PEER)
    limited "http-2 is not installed" if @peer.nil? && self.class::PEER == :original
    assert @peer, "the server does not start"
    @base = "https://127.0.0.1:#{@peer.tls}"
    @session = HTTPX.with(ssl: { verify_mode: OpenSSL::SSL::VERIFY_NONE }, timeout: { request_timeout: 20 })
  end

  def teardown
    @session&.close
  end

  # The body of a response over HTTP/2 that went well.
  def body(response)
    raise response.error if response.is_a?(HTTPX::ErrorResponse)

    assert_equal [200, "2.0"], [response.status, response.version]
    response.to_s
  end

  def test_methods_over_alpn
    assert_equal "GET /x", body(@session.get("#{@base}/x"))
    assert_equal "DELETE /y", body(@session.delete("#{@base}/y"))
    assert_equal "", @session.head("#{@base}/bytes?0").to_s
    assert_equal "häßlich", body(@session.post("#{@base}/echo", body: "häßlich")).dup.force_encoding("UTF-8")
    assert_equal "GET /x #{"m" * 40_000}", body(@session.get("#{@base}/x", headers: { "x-more" => "m" * 40_000 }))
  end

  def test_prior_knowledge
    session = @session.with(fallback_protocol: "h2")
    assert_equal "GET /plain", body(session.get("http://127.0.0.1:#{@peer.plain}/plain"))
    assert_equal "posted", body(session.post("http://127.0.0.1:#{@peer.plain}/echo", body: "posted"))
  end

  def test_upgrade_from_http_1
    session = @session.plugin(:h2c)
    first, second = session.get(*%w[one two].map { |path| "http://127.0.0.1:#{@peer.plain}/#{path}" })
    assert_equal ["GET /one", "GET /two"], [body(first), body(second)]
  end

  def test_many_requests_share_a_connection
    urls = Array.new(150) { |at| "#{@base}/number?#{at}" } + ["#{@base}/connection"] * 2
    *answers, one, two = @session.get(*urls).map { |response| body(response) }
    assert_equal Array.new(150) { |at| "GET /number?#{at}" }, answers
    assert_equal one, two
  end

  def test_the_connection_is_used_again
    assert_equal 1, @session.wrap { |http| Array.new(3) { body(http.get("#{@base}/connection")) } }.uniq.size
  end

  def test_bodies_larger_than_the_windows
    big = "0123456789abcdef" * 50_000
    assert_equal "#{big.bytesize} #{big.sum}", body(@session.post("#{@base}/size", body: big))
    assert_equal big, body(@session.post("#{@base}/echo", body: big))
    assert_equal 300_000, body(@session.get("#{@base}/window")).bytesize
    assert_equal 2_000_000, body(@session.get("#{@base}/bytes?2000000")).bytesize
    bodies = @session.post(*Array.new(8) { |at| ["#{@base}/echo", { body: at.to_s * 200_000 }] })
    assert_equal Array.new(8) { |at| at.to_s * 200_000 }, bodies.map { |response| body(response) }
  end

  def test_bodies_in_parts
    parts = Enumerator.new { |into| 20.times { |at| into << "part #{at};" * 100 } }
    sent = parts.to_a.join
    assert_equal "#{sent.bytesize} #{sent.sum}", body(@session.post("#{@base}/size", body: parts))
    received = @session.plugin(:stream).get("#{@base}/parts?500", stream: true).each_line.to_a
    assert_equal Array.new(500) { |at| "part #{at}" }, received
  end

  def test_trailers
    response = @session.get("#{@base}/trailers")
    assert_equal "with trailers", body(response)
    assert_equal "42", response.headers["x-sum"]
    request = @session.build_request("POST", "#{@base}/echo", body: "content")
    request.trailers["x-check"] = "sum"
    response = @session.request(request)
    assert_equal "content", body(response)
    assert_equal "sum", response.headers["was-x-check"]
  end

  def test_both_ways_at_once
    session = @session.plugin(:stream_bidi)
    request = session.build_request("POST", "#{@base}/live", body: [], stream: true)
    response = session.request(request)
    sent = %w[one two three]
    received = []
    request << sent.shift
    response.each do |chunk|
      received << chunk
      sent.empty? ? request.close : request << sent.shift
    end
    assert_equal "ONETWOTHREE", received.join
  end

  def test_a_push_answers_a_request
    session = @session.plugin(:push_promise)
    page, pushed = session.get("#{@base}/push", "#{@base}/pushed")
    assert_equal "page", body(page)
    assert_equal "was pushed", body(pushed)
    assert_predicate pushed, :pushed?
  end

  def test_a_push_that_nobody_wants_is_refused
    session = @session.plugin(:push_promise)
    assert_equal "page", body(session.get("#{@base}/push"))
  end

  def test_resets
    session = @session.with(timeout: { request_timeout: 5 })
    error = session.get("#{@base}/reset").error
    assert_instance_of HTTPX::Connection::HTTP2::RstStreamError, error
    assert_match(/closed with error: cancel/, error.message)
    reset, fine = session.get("#{@base}/reset", "#{@base}/fine")
    assert_kind_of HTTPX::Connection::HTTP2::RstStreamError, reset.error
    assert_equal "GET /fine", body(fine)
  end

  def test_timeouts_leave_the_connection_usable
    @session.wrap do |http|
      late = http.get("#{@base}/never", timeout: { request_timeout: 0.3 })
      assert_kind_of HTTPX::RequestTimeoutError, late.error
      assert_equal "GET /after", body(http.get("#{@base}/after"))
    end
  end

  def test_goaway_ends_a_connection_and_the_next_request_opens_another
    first = second = nil
    @session.wrap do |http|
      first = http.get("#{@base}/goaway")
      second = http.get("#{@base}/x")
    end
    assert_match(/\A(after goaway on|GET)/, first.is_a?(HTTPX::ErrorResponse) ? "GET" : body(first))
    assert_equal "GET /x", body(second)
  end

  def test_pings_are_answered
    assert_equal "pong 12345678", body(@session.get("#{@base}/ping"))
  end

  def test_retries_and_persistence
    session = @session.plugin(:persistent).plugin(:retries)
    assert_equal ["GET /a", "GET /b"], [body(session.get("#{@base}/a")), body(session.get("#{@base}/b"))]
    session.close
  end

  def test_settings_of_the_application
    session = @session.with(http2_settings: { settings_enable_push: 0, settings_initial_window_size: 120_000,
                                              settings_max_frame_size: 32_768, settings_header_table_size: 8192 })
    assert_equal 900_000, body(session.get("#{@base}/bytes?900000")).bytesize
    assert_raises(ArgumentError) { @session.with(http2_settings: { unheard_of: 1 }).get("#{@base}/x") }
  end

  def test_windows_of_any_size
    gap_of_the_original
    session = @session.with(http2_settings: { settings_initial_window_size: 200_000 })
    assert_equal 900_000, body(session.get("#{@base}/bytes?900000")).bytesize
  end

  def test_logs_show_every_frame
    log = StringIO.new
    assert_equal "GET /logged", body(@session.with(debug: log, debug_level: 3).get("#{@base}/logged"))
    assert_match(/frame was sent!.*:settings/m, log.string)
    assert_match(/frame was received!.*:data/m, log.string)
  end

  def test_threads_with_a_session_each
    answers = Array.new(6) do |at|
      Thread.new { @session.with({}).get(*Array.new(10) { |n| "#{@base}/t#{at}-#{n}" }).map(&:to_s) }
    end.map(&:value)
    assert_equal Array.new(6) { |at| Array.new(10) { |n| "GET /t#{at}-#{n}" } }, answers
  end
end

class HTTPXToDropInTest < Wireloom::TestCase
  include HTTPXTests
  PEER = :drop_in
end

class HTTPXToOriginalTest < Wireloom::TestCase
  include HTTPXTests
  PEER = :original
end
