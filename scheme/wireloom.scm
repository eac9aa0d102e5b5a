;;; WebSocket over any pair of ports, on libwireloom.
;;;
;;; The procedures and parameters of the egg `websockets`, a client, and permessage-deflate.

(declare
  (disable-interrupts)                  ; Steps between two waits are atomic.
  (no-procedure-checks))

(module wireloom
  (;; websockets
   current-websocket ping-interval close-timeout connection-timeout
   accept-connection access-denied drop-incoming-pings propagate-common-errors
   max-frame-size max-message-size
   with-websocket with-concurrent-websocket receive-message send-message
   ;; More of a server
   upgrade-ports permessage-deflate websocket-accept close-websocket
   websocket? websocket-open? websocket-compressed? websocket-resource websocket-subprotocol
   websocket-header supported-subprotocols
   ;; The client
   websocket-connect websocket-client with-client-websocket
   ;; For tests
   wireloom-version live-websockets)

  (import scheme (chicken base) (chicken foreign) (chicken fixnum) (chicken condition)
          (chicken gc) (chicken io) (chicken port) (chicken string) (chicken tcp)
          (chicken time) (chicken blob) (chicken memory) (srfi 4))

  (foreign-declare "#include \"glue.h\"")

  ;;; Parameters

  ;; A number from 0 to `max`, which C can convert.
  (define (number-parameter name unit max default)
    (make-parameter
     default
     (lambda (value)
       (unless (and (real? value) (<= 0 value max))
         (abort (websocket-condition 'invalid-parameters (conc name " is a number of " unit " from 0 to " max) value)))
       value)))

  ;; 31 years are nanoseconds that fit into 64 bits, and no limit.
  (define (time-parameter name default) (number-parameter name "seconds" 1000000000 default))

  ;; Up to 2^53 a flonum has each number.
  (define (size-parameter name default) (number-parameter name "bytes" 9007199254740992 default))

  (define current-websocket (make-parameter #f))
  (define ping-interval (time-parameter 'ping-interval 15))
  (define close-timeout (time-parameter 'close-timeout 5))
  (define connection-timeout (time-parameter 'connection-timeout 58))
  (define accept-connection (make-parameter (lambda (origin) #t)))
  (define access-denied (make-parameter (lambda () #f)))
  (define drop-incoming-pings (make-parameter #t))
  (define propagate-common-errors (make-parameter #f))
  (define max-frame-size (size-parameter 'max-frame-size 1048576))
  (define max-message-size (size-parameter 'max-message-size 1048576))
  (define permessage-deflate (make-parameter #t))
  (define supported-subprotocols (make-parameter '()))

  ;; The request that `with-websocket` upgrades: an input port, an output port, and the head of the request if it has been read.
  (define upgrade-ports
    (make-parameter (lambda () (values (current-input-port) (current-output-port) #f))))

  ;;; Conditions

  (define (websocket-condition kind message . arguments)
    (make-composite-condition
     (make-property-condition 'exn 'location 'wireloom 'message message 'arguments arguments)
     (make-property-condition 'websocket)
     (make-property-condition kind 'msg message)))

  (define (fail kind message . arguments)
    (signal (apply websocket-condition kind message arguments)))

  ;;; The connection

  (define-record-type websocket
    (%make-websocket state in out in-fd out-fd role resource subprotocol headers mailbox timer ahead reading writing waiters is-reported owns-ports)
    websocket?
    (state websocket-state set-websocket-state!) ; a pointer; #f when it is freed
    (in websocket-in)
    (out websocket-out)
    (in-fd websocket-in-fd)             ; of a socket, else #f
    (out-fd websocket-out-fd)
    (role websocket-role)
    (resource websocket-resource set-websocket-resource!)
    (subprotocol websocket-subprotocol set-websocket-subprotocol!)
    (headers websocket-headers set-websocket-headers!)
    (mailbox websocket-mailbox set-websocket-mailbox!)
    (timer websocket-timer set-websocket-timer!)
    ;; The message that the timer read and its type; #f when there is none.
    (ahead websocket-ahead set-websocket-ahead!)
    ;; Of ports that are not sockets: the thread that reads or writes; #f when it has; else the end of the port, a condition or #!eof.
    (reading websocket-reading set-websocket-reading!)
    (writing websocket-writing set-websocket-writing!)
    (waiters websocket-waiters)         ; for the transport
    ;; Whether an end without a Close frame was reported.
    (is-reported websocket-is-reported set-websocket-is-reported!)
    ;; Whether the ports close with the connection: they were made here, or given to the procedure that closes it.
    (owns-ports websocket-owns-ports set-websocket-owns-ports!))

  (define-foreign-variable %eof int "WLS_EOF")
  (define-foreign-variable %done int "WLS_DONE")
  (define-foreign-variable %again int "WLS_AGAIN")
  (define-foreign-variable %failed int "WLS_FAILED")
  (define-foreign-variable %invalid-argument int "WL_STATUS_INVALID_ARGUMENT")
  (define-foreign-variable %not-open int "WL_STATUS_NOT_OPEN")
  (define-foreign-variable %invalid-utf8 int "WL_STATUS_INVALID_UTF8")
  (define-foreign-variable %queue-full int "WL_STATUS_QUEUE_FULL")
  (define-foreign-variable %text int "WL_WS_EVENT_KIND_TEXT")
  (define-foreign-variable %binary int "WL_WS_EVENT_KIND_BINARY")
  (define-foreign-variable %close int "WL_WS_EVENT_KIND_CLOSE")
  (define-foreign-variable %alive long "wls_alive")

  (define %new (foreign-lambda c-pointer "wls_new"))
  (define %free (foreign-lambda void "wls_free" c-pointer))
  (define %peek (foreign-lambda int "wls_peek" c-pointer))
  (define %read (foreign-lambda int "wls_read" c-pointer int))
  (define %read-trailing (foreign-lambda void "wls_read_trailing" c-pointer int))
  (define %readable? (foreign-lambda bool "wls_is_readable" int))
  (define %read-behind (foreign-lambda void "wls_read_behind" c-pointer int))
  (define %full? (foreign-lambda bool "wls_is_full" c-pointer))
  (define %handle-activity (foreign-lambda void "wls_handle_activity" c-pointer))
  (define %feed (foreign-lambda bool "wls_feed" c-pointer scheme-pointer long))
  (define %write (foreign-lambda int "wls_write" c-pointer int))
  (define %take-output (foreign-lambda long "wls_take_output" c-pointer scheme-pointer long))
  (define %send (foreign-lambda int "wls_send" c-pointer int scheme-pointer long))
  (define %timeout-ms (foreign-lambda double "wls_timeout_ms" c-pointer))
  (define %handle-timeout
    (foreign-lambda* void ((c-pointer self)) "wl_ws_handle_timeout(((wls *)self)->ws, wls_now());"))
  (define %handle-write-failed
    (foreign-lambda* void ((c-pointer self)) "wl_ws_handle_write_failed(((wls *)self)->ws, wls_now());"))
  (define %handle-eof
    (foreign-lambda* void ((c-pointer self)) "wl_ws_handle_eof(((wls *)self)->ws);"))
  (define %close-send
    (foreign-lambda* int ((c-pointer self) (int code) (scheme-pointer reason) (long len))
      "C_return(wl_ws_close(((wls *)self)->ws, wls_now(), (uint16_t)code, reason, (size_t)len));"))
  (define %has-output?
    (foreign-lambda* bool ((c-pointer self))
      "wl_slice slices[WL_SLICES_MAX];
       size_t count = 0;
       wl_ws_poll_transmit(((wls *)self)->ws, slices, WL_SLICES_MAX, &count);
       C_return(count > 0);"))
  (define %event-len
    (foreign-lambda* long ((c-pointer self)) "wls *s = self; C_return(s->events[s->event].len);"))
  (define %event-code
    (foreign-lambda* int ((c-pointer self)) "wls *s = self; C_return(s->events[s->event].code);"))
  ;; Copies the payload behind `from` bytes, and takes the event.
  (define %copy-event
    (foreign-lambda* void ((c-pointer self) (scheme-pointer to) (int from))
      "wl_ws_event *event = wls_take_event(self);
       if (event->len > 0) memcpy((char *)to + from, event->data, event->len);"))
  (define %drop-event (foreign-lambda* void ((c-pointer self)) "wls_take_event(self);"))
  (define %transport
    (foreign-lambda* int ((c-pointer self)) "C_return(wls_state(self).transport);"))
  (define %open? (foreign-lambda* bool ((c-pointer self)) "C_return(wls_state(self).is_open);"))
  (define %compressed?
    (foreign-lambda* bool ((c-pointer self)) "C_return(wls_state(self).is_compressed);"))
  (define %end-cause (foreign-lambda* int ((c-pointer self)) "C_return(wls_end(self).cause);"))
  (define %end-code (foreign-lambda* int ((c-pointer self)) "C_return(wls_end(self).code);"))
  (define %end-text-len (foreign-lambda* long ((c-pointer self)) "C_return(wls_end(self).text.len);"))
  (define %end-text-copy
    (foreign-lambda* void ((c-pointer self) (scheme-pointer to))
      "wl_ws_end end = wls_end(self); memcpy(to, end.text.data, end.text.len);"))
  (define %status-text (foreign-lambda c-string "wl_status_text" int))
  (define %shutdown (foreign-lambda* void ((int fd)) "shutdown(fd, SHUT_WR);"))

  (define wireloom-version (foreign-lambda c-string "wl_version"))

  ;; The number of connections that exist, also those that await a finaliser.
  (define (live-websockets) %alive)

  ;; A string that is not initialised.
  (define (fresh-string len) (##sys#allocate-vector len #t #f #f))

  ;; The descriptor of a port of the unit tcp.
  (define (socket-fd port)
    (and (port? port)
         (eq? (##sys#slot port 7) 'socket)
         (let ((data (##sys#slot port 9)))
           (and (vector? data) (fx> (vector-length data) 0) (fixnum? (vector-ref data 0))
                (vector-ref data 0)))))

  (define (make-websocket in out role)
    (let* ((state (%new))
           (ws (%make-websocket state in out (socket-fd in) (socket-fd out) role #f #f '() #f #f #f #f #f (make-waiters '()) #f #f)))
      (unless state (fail 'out-of-memory "there is no memory for a connection"))
      (set-finalizer! ws release)
      ws))

  (define (release ws)
    (let ((state (websocket-state ws)))
      (when state
        (set-websocket-state! ws #f)
        (%free state)
        (for-each kill (list (websocket-reading ws) (websocket-writing ws)))
        (wake-all (websocket-waiters ws))
        (when (websocket-mailbox ws) (close-mailbox (websocket-mailbox ws)))
        (when (websocket-owns-ports ws) (close-ports ws)))))

  ;; The pointer; a condition after the connection was closed.
  (define (open-state ws)
    (unless (websocket? ws)
      (##sys#signal-hook #:type-error 'wireloom "not a websocket" ws))
    (websocket-state ws))

  ;;; Waiting

  (define (now-ms) (exact->inexact (current-process-milliseconds)))

  (define (sleep-ms ms)
    (##sys#thread-block-for-timeout! ##sys#current-thread (+ (now-ms) ms))
    (##sys#thread-yield!))

  ;; Threads that wait for one thing, which wakes them.
  (define-record-type waiters (make-waiters threads) waiters? (threads waiters-threads set-waiters-threads!))

  ;; Calls `block`, which returns after some time or when the current thread is woken.
  (define (wait-among waiters block)
    (let ((thread ##sys#current-thread))
      (set-waiters-threads! waiters (cons thread (waiters-threads waiters)))
      (block)
      (set-waiters-threads! waiters (foldr (lambda (other rest) (if (eq? other thread) rest (cons other rest)))
                                           '() (waiters-threads waiters)))))

  (define (wake-all waiters)
    (let ((threads (waiters-threads waiters)))
      (set-waiters-threads! waiters '())
      (for-each wake threads)))

  ;; Waits for a descriptor, at most `ms` milliseconds if that is not negative, and not beyond the end of the websocket.
  (define (wait-for-fd ws fd direction ms)
    (unless (zero? ms)
      (wait-among
       (websocket-waiters ws)
       (lambda ()
         (unless (negative? ms)
           (##sys#thread-block-for-timeout! ##sys#current-thread (+ (now-ms) ms)))
         (##sys#thread-block-for-i/o! ##sys#current-thread fd direction)
         (##sys#thread-yield!)))))

  ;; A port that is not a socket knows no deadline. One thread of its own reads from it and one writes, while others wait for them.

  ;; Waits while `running` is a thread, at most `ms` milliseconds if that is not negative; returns whether it has ended.
  (define (wait-for-port ws running ms)
    (let ((deadline (and (>= ms 0) (+ (now-ms) ms))))
      (let loop ()
        (cond ((not (thread? (running ws))) #t)
              ((or (not (websocket-state ws)) (and deadline (>= (now-ms) deadline))) #f)
              (else
               (wait-among (websocket-waiters ws)
                           (lambda () (sleep-ms (if deadline (- deadline (now-ms)) 1000.0))))
               (loop))))))

  (define (start-port-thread ws name set-running! work)
    (set-running!
     ws
     (start-thread
      name
      (lambda ()
        (set-running! ws (handle-exceptions exn exn (work)))
        (wake-all (websocket-waiters ws))))))

  ;; Ends a thread that the peer has no more time for; its port has no use then.
  (define (end-port-thread ws running set-running!)
    (when (thread? (running ws))
      (kill (running ws))
      (set-running! ws #!eof)))

  ;;; Output

  (define output-chunk 65536)

  ;; Writes the output; returns whether that was possible.
  (define (flush ws)
    (let ((state (websocket-state ws)) (fd (websocket-out-fd ws)))
      (cond ((not state) #f)
            (fd
             (let ((result (%write state fd)))
               (cond ((fx= result %done) (shutdown-if-due ws) #t)
                     ((fx= result %again)
                      (wait-for-fd ws fd #:output (%timeout-ms state))
                      (flush-on ws))
                     (else #f))))
            (else
             (unless (websocket-writing ws)
               (when (%has-output? state)
                 (start-port-thread ws 'wireloom-writer set-websocket-writing! (lambda () (write-port ws)))))
             (cond ((not (websocket-writing ws)) #t)
                   ((not (wait-for-port ws websocket-writing (%timeout-ms state))) (flush-on ws))
                   ((websocket-writing ws)
                    (let ((state (websocket-state ws))) (when state (%handle-write-failed state)))
                    #f)
                   (else (flush ws)))))))

  ;; After a wait: `flush` once more, unless the time of the peer is over.
  (define (flush-on ws)
    (let ((state (websocket-state ws)))
      (and state
           (begin
             (%handle-timeout state)
             (cond ((fx< (%transport state) 2) (flush ws))
                   (else (end-port-thread ws websocket-writing set-websocket-writing!) #f))))))

  ;; Writes until a flush of the port finds nothing more to write. Returns #f.
  (define (write-port ws)
    (let loop ((is-flushed #f))
      (let ((state (websocket-state ws)))
        (and state
             (let* ((chunk (fresh-string output-chunk))
                    (len (%take-output state chunk output-chunk)))
               (cond ((fx> len 0)
                      (write-string (if (fx= len output-chunk) chunk (substring chunk 0 len))
                                    #f (websocket-out ws))
                      (loop #f))
                     (is-flushed #f)
                     (else
                      (flush-output (websocket-out ws))
                      (loop #t))))))))

  ;; RFC 6455 section 7.1.1: the server closes first, and the client waits for that.
  (define (shutdown-if-due ws)
    (let ((state (websocket-state ws)))
      (when (and state (fx= (%transport state) 1) (websocket-out-fd ws))
        (%shutdown (websocket-out-fd ws)))))

  (define (type->number type)
    (case type
      ((text) 0)
      ((binary) 1)
      ((ping) 2)
      ((pong) 3)
      (else #f)))

  (define (send-message data #!optional (type 'text) (ws (current-websocket)))
    (let ((state (open-state ws))
          (number (type->number type))
          (bytes (cond ((u8vector? data) (u8vector->blob/shared data)) (else data))))
      (cond ((not number) (fail 'invalid-optype "a message has another type" type))
            ((not (or (string? bytes) (blob? bytes)))
             (##sys#signal-hook #:type-error 'send-message "not a string or u8vector" data))
            ((not state) (fail 'connection-closed "the connection is closed"))
            (else
             (let ((status (%send state number bytes
                                  (if (string? bytes) (string-length bytes) (blob-size bytes)))))
               (cond ((fx>= status 0)
                      (or (flush ws) (fail 'connection-closed "the peer does not read"))
                      (void))
                     ((and (fx= status %queue-full) (%has-output? state))
                      ;; Other threads have filled the queue: waits as they do.
                      (cond ((flush ws)
                             (sleep-ms 1.0)
                             (send-message data type ws))
                            (else (fail 'connection-closed "the peer does not read"))))
                     ((fx= status %not-open) (fail 'connection-closed "the connection is closed"))
                     ((fx= status %invalid-utf8) (fail 'invalid-data "the text is not valid UTF-8"))
                     (else (fail 'invalid-data (%status-text status)))))))))

  ;;; Input

  ;; Reads once from a port that is not a socket. A read that has begun outlives the wait for it, and serves the next.
  (define (read-port ws ms)
    (start-port-reader ws)
    (if (wait-for-port ws (lambda (ws) (and (not (websocket-ahead ws)) (websocket-reading ws))) ms)
        (let ((end (websocket-reading ws)))
          (cond ((or (not end) (thread? end)) %done)
                ((eof-object? end) %eof)
                (else
                 (set-websocket-reading! ws #!eof)
                 (abort end))))
        %again))

  (define (start-port-reader ws)
    (unless (websocket-reading ws)
      (start-port-thread ws 'wireloom-port-reader set-websocket-reading! (lambda () (feed-from-port ws)))))

  ;; Returns #f, or #!eof at the end.
  (define (feed-from-port ws)
    (let* ((in (websocket-in ws))
           (first (peek-char in)))
      (if (eof-object? first)
          first
          (let ((buffered (read-buffered in)))
            (feed-string ws (if (string=? buffered "") (read-ready in) buffered))
            (let ((state (websocket-state ws))) (when state (%handle-activity state)))
            #f))))

  ;; The characters that are ready, at least one.
  (define (read-ready in)
    (let ((out (open-output-string)))
      (let loop ((left 4096))
        (write-char (read-char in) out)
        (if (and (fx> left 1) (char-ready? in) (not (eof-object? (peek-char in))))
            (loop (fx- left 1))
            (get-output-string out)))))

  ;; Reads once, or waits; returns %done, or %eof at the end.
  (define (read-some ws ms)
    (let ((fd (websocket-in-fd ws)))
      (if fd
          (let ((result (%read (websocket-state ws) fd)))
            (cond ((fx= result %again)
                   (wait-for-fd ws fd #:input ms)
                   ;; Buffered input is read before the deadline is checked, however late this thread runs.
                   (if (and (websocket-state ws) (%readable? fd)) %done %again))
                  ((fx= result %failed) %eof)
                  (else result)))
          (read-port ws ms))))

  (define (error-condition state)
    (let* ((text (fresh-string (%end-text-len state)))
           (code (%end-code state)))
      (%end-text-copy state text)
      (case (%end-cause state)
        ((3) (websocket-condition 'message-too-large text code))
        ((4) (websocket-condition 'connection-timeout text code))
        ((5) (websocket-condition 'close-timeout text code))
        ((6) (websocket-condition 'unexpected-close text code))
        (else (websocket-condition (if (fx= code 1007) 'invalid-data 'protocol-error) text code)))))

  ;; The code of a Close frame and its reason, as in the frame.
  (define (close-payload state)
    (let* ((code (%event-code state)) (len (%event-len state)))
      (if (fx= code 1005)
          (begin (%drop-event state) "")
          (let ((payload (fresh-string (fx+ len 2))))
            (string-set! payload 0 (integer->char (fxshr code 8)))
            (string-set! payload 1 (integer->char (fxand code 255)))
            (%copy-event state payload 2)
            payload))))

  ;; Takes the next event of what was read: a message and its type; a condition and `failed`; #f and `control`, for a Ping or Pong; #f and
  ;; #f when more input is needed. After all but messages there is output.
  (define (take-event state)
    (let ((kind (%peek state)))
      (cond ((or (fx= kind %text) (fx= kind %binary))
             (let ((message (fresh-string (%event-len state))))
               (%copy-event state message 0)
               (values message (if (fx= kind %text) 'text 'binary))))
            ((fx= kind %close) (values (close-payload state) 'connection-close))
            ((fx> kind 0) (%drop-event state) (values #f 'control))
            ((fx< kind 0) (values (error-condition state) 'failed))
            (else (values #f #f)))))

  ;; The next message and its type; a condition in place of the message, and `failed`.
  (define (next-message ws)
    (let loop ()
      (let ((state (websocket-state ws)) (ahead (websocket-ahead ws)))
        (cond ((not state) (values #!eof #!eof))
              (ahead
               (set-websocket-ahead! ws #f)
               (values (car ahead) (cdr ahead)))
              (else
               (receive (message type) (take-event state)
                 (case type
                   ((text binary) (values message type))
                   ((connection-close failed) (flush ws) (values message type))
                   ((control) (flush ws) (loop))
                   (else
                    (if (fx= (%transport state) 2)
                        (finished ws)
                        (let ((result (read-some ws (%timeout-ms state))))
                          (cond ((fx= result %eof)
                                 (let ((state (websocket-state ws)))
                                   (when state (%handle-eof state)))
                                 (if (websocket-state ws) (finished ws) (values #!eof #!eof)))
                                ((fx= result %again)
                                 (let ((state (websocket-state ws)))
                                   (when state
                                     (%handle-timeout state)
                                     (flush ws)))
                                 (loop))
                                (else (loop)))))))))))))

  ;; Reads for an application that does not receive, once and without waiting: Pings are answered, Pongs and the end are seen. The first
  ;; message is kept for `next-message`, and what follows it is not handled before the application can have answered it.
  (define (read-ahead ws)
    (let loop ((has-read #f))
      (let ((state (websocket-state ws)))
        (cond ((or (not state) (fx= (%transport state) 2)) #f)
              ((websocket-ahead ws) (read-behind ws state))
              (else
               (receive (message type) (take-event state)
                 (case type
                   ((control) (loop has-read))
                   ((#f) (unless has-read (when (read-now ws state) (loop #t))))
                   (else
                    (set-websocket-ahead! ws (cons message type))
                    (wake-all (websocket-waiters ws))))))))))

  ;; Whether there were bytes.
  (define (read-now ws state)
    (let ((result (if (websocket-in-fd ws)
                      (%read state (websocket-in-fd ws))
                      (begin
                        (start-port-reader ws)
                        (##sys#thread-yield!)
                        (let ((end (websocket-reading ws)))
                          (cond ((not end) %done) ((eof-object? end) %eof) (else %again)))))))
      (unless (or (fx= result %done) (fx= result %again))
        (let ((state (websocket-state ws))) (when state (%handle-eof state)))
        (wake-all (websocket-waiters ws)))
      (fx= result %done)))

  (define (read-behind ws state)
    (cond ((websocket-in-fd ws) (%read-behind state (websocket-in-fd ws)))
          ((%full? state) (%handle-activity state))
          (else
           (start-port-reader ws)
           (##sys#thread-yield!))))

  ;; The result of `receive-message` when the transport has ended.
  (define (finished ws)
    (end-port-thread ws websocket-reading set-websocket-reading!)
    (let ((cause (%end-cause (websocket-state ws))))
      (if (or (fx< cause 4) (websocket-is-reported ws))
          (values #!eof #!eof)
          (begin
            (set-websocket-is-reported! ws #t)
            (values (error-condition (websocket-state ws)) 'failed)))))

  (define (receive-message #!optional (ws (current-websocket)))
    (open-state ws)
    (receive (message type)
        (if (websocket-mailbox ws) (mailbox-receive! (websocket-mailbox ws)) (next-message ws))
      (cond ((eq? type 'failed)
             (signal message)
             (values #!eof #!eof))
            (else (values message type)))))

  ;;; Closing

  (define (close-websocket #!optional (ws (current-websocket)) #!key (code 1000) (reason ""))
    (let ((state (open-state ws)))
      (when state
        (let ((status (if (fx= code (fxand code 65535))
                          (%close-send state code reason (string-length reason))
                          %invalid-argument)))
          (unless (or (fx>= status 0) (fx= status %not-open))
            (abort (websocket-condition 'invalid-data (%status-text status) code reason))))
        (when (flush ws)
          (read-trailing ws)
          ;; Until the peer's Close frame and the end of its stream, or the timeout. An error of the port is an end too.
          (handle-exceptions exn #f
            (let loop ()
              (let ((state (websocket-state ws)))
                (when (and state (fx< (%transport state) 2))
                  (receive (message type) (next-message ws)
                    ;; Another thread may have freed the state while this one waited; `loop` looks again.
                    (unless (eof-object? message) (loop)))))))))
      (stop-timer ws)
      (release ws)
      (void)))

  ;; RFC 6455 section 7.1.1: what a peer has sent behind its Close frame is discarded, until it has closed too.
  (define (read-trailing ws)
    (let ((state (websocket-state ws)) (fd (websocket-in-fd ws)))
      (when (and state fd (fx= (%transport state) 2))
        (%read-trailing state fd)
        (shutdown-if-due ws))))

  (define (websocket-open? ws)
    (let ((state (open-state ws))) (and state (%open? state))))

  (define (websocket-compressed? ws)
    (let ((state (open-state ws))) (and state (%compressed? state))))

  (define (close-ports ws) (close-port-pair (websocket-in ws) (websocket-out ws)))

  (define (close-port-pair in out)
    (for-each (lambda (close port)
                (handle-exceptions exn #f (unless (port-closed? port) (close port))))
              (list close-input-port close-output-port)
              (list in out)))

  ;;; Threads, from what the scheduler has: no egg is needed

  (define (start-thread name thunk)
    (let ((thread (##sys#make-thread #f 'created name (##sys#slot ##sys#current-thread 9))))
      (##sys#setslot
       thread 1
       (lambda ()
         (handle-exceptions exn #f (thunk))
         (##sys#thread-kill! thread 'dead)
         (##sys#schedule)))
      (##sys#setslot thread 3 'ready)
      (##sys#add-to-ready-queue thread)
      thread))

  (define (dead? thread) (memq (##sys#slot thread 3) '(dead terminated)))

  (define (thread? x) (##sys#structure? x 'thread))

  ;; Ends a thread in the middle of its work, as thread-terminate! of srfi-18 does.
  (define (kill thread)
    (when (and (thread? thread) (not (eq? thread ##sys#current-thread)) (not (dead? thread)))
      (wake thread)
      (##sys#thread-kill! thread 'terminated)
      (##sys#setslot thread 1 (lambda () (##sys#schedule)))))

  (define (wake thread)
    (when (eq? (##sys#slot thread 3) 'blocked) (##sys#thread-unblock! thread)))

  ;; Keeps deadlines while the application does not receive, and closes when its thread was killed.
  (define (start-timer ws)
    (when (or (> (ping-interval) 0) (> (connection-timeout) 0))
      (let ((owner ##sys#current-thread))
        (set-websocket-timer!
         ws
         (start-thread
          'wireloom-timer
          (lambda ()
            (let loop ()
              (let ((state (websocket-state ws)))
                (when (and state (fx< (%transport state) 2))
                  (let ((ms (%timeout-ms state)))
                    (sleep-ms (if (negative? ms) 1000.0 (max 1.0 ms))))
                  (cond ((dead? owner) (close-websocket ws code: 1011))
                        (else
                         (read-ahead ws)
                         (let ((state (websocket-state ws)))
                           (when state
                             (%handle-timeout state)
                             (flush ws)
                             (loop))))))))))))))

  (define (stop-timer ws)
    (let ((timer (websocket-timer ws)))
      (when timer
        (set-websocket-timer! ws #f)
        (release ws)
        (wake timer))))

  ;; A queue between the reader of `with-concurrent-websocket` and its receivers.
  (define-record-type mailbox
    (%make-mailbox items last waiters reader weight is-closed)
    mailbox?
    (items mailbox-items set-mailbox-items!)
    (last mailbox-last set-mailbox-last!)
    (waiters mailbox-waiters)
    (reader mailbox-reader set-mailbox-reader!)
    (weight mailbox-weight set-mailbox-weight!)
    (is-closed mailbox-is-closed set-mailbox-is-closed!))

  ;; It takes another message while it weighs less: at most 64, or the one that exceeds it.
  (define mailbox-weight-max 1048576)

  ;; An item is a message, a condition or #!eof, and its type.
  (define (item-weight item)
    (fx+ 16384 (if (string? (car item)) (string-length (car item)) 0)))

  (define (weigh! mailbox change) (set-mailbox-weight! mailbox (fx+ (mailbox-weight mailbox) change)))

  (define (make-mailbox) (%make-mailbox '() '() (make-waiters '()) #f 0 #f))

  ;; After the end of the connection nothing is received or kept.
  (define (close-mailbox mailbox)
    (set-mailbox-is-closed! mailbox #t)
    (set-mailbox-items! mailbox '())
    (set-mailbox-weight! mailbox 0)
    (wake-waiting mailbox))

  (define (wake-waiting mailbox) (wake-all (mailbox-waiters mailbox)))

  ;; Waits until the mailbox changes, or a while, so that nothing hangs when another thread is killed.
  (define (mailbox-wait mailbox) (wait-among (mailbox-waiters mailbox) (lambda () (sleep-ms 100.0))))

  (define (mailbox-send! mailbox message type)
    (cond ((mailbox-is-closed mailbox))
          ((fx>= (mailbox-weight mailbox) mailbox-weight-max)
           (mailbox-wait mailbox)
           (mailbox-send! mailbox message type))
          (else
           (let ((item (list (cons message type))))
             (if (null? (mailbox-items mailbox))
                 (set-mailbox-items! mailbox item)
                 (set-cdr! (mailbox-last mailbox) item))
             (set-mailbox-last! mailbox item)
             (weigh! mailbox (item-weight (car item)))
             (wake-waiting mailbox)))))

  (define (mailbox-receive! mailbox)
    (let ((items (mailbox-items mailbox)))
      (cond ((pair? items)
             (set-mailbox-items! mailbox (cdr items))
             (weigh! mailbox (fx- 0 (item-weight (car items))))
             (wake-waiting mailbox)
             (values (caar items) (cdar items)))
            ((or (mailbox-is-closed mailbox) (dead? (mailbox-reader mailbox))) (values #!eof #!eof))
            (else
             (mailbox-wait mailbox)
             (mailbox-receive! mailbox)))))

  (define (start-reader ws)
    (let ((mailbox (make-mailbox)))
      (set-mailbox-reader!
       mailbox
       (start-thread
        'wireloom-reader
        (lambda ()
          (let loop ()
            (receive (message type) (next-message ws)
              (mailbox-send! mailbox message type)
              (unless (or (eof-object? message) (eq? type 'failed)) (loop))))
          (wake-waiting mailbox))))
      (set-websocket-mailbox! ws mailbox)))

  ;;; The server

  (define-syntax with-config
    (syntax-rules ()
      ((_ open state)
       (open state (exact->inexact (max-frame-size)) (exact->inexact (max-message-size))
             (exact->inexact (ping-interval)) (exact->inexact (connection-timeout))
             (exact->inexact (close-timeout))))))

  (define %server-new (foreign-lambda int "wls_server_new" c-pointer))
  (define %server-step (foreign-lambda int "wls_server_step" c-pointer))
  (define %server-open
    (foreign-lambda* int ((c-pointer self) (double frame) (double message) (double ping) (double dead) (double close))
      "wl_ws_config config = wls_config(frame, message, ping, dead, close);
       C_return(wls_server_open(self, &config));"))
  (define %request-len
    (foreign-lambda* long ((c-pointer self) (int part) (c-string header))
      "wl_slice value = wls_request(self, part, header); C_return(value.data == NULL ? -1 : (long)value.len);"))
  (define %request-copy
    (foreign-lambda* void ((c-pointer self) (int part) (c-string header) (scheme-pointer to))
      "wl_slice value = wls_request(self, part, header); memcpy(to, value.data, value.len);"))
  (define %accept
    (foreign-lambda* long ((c-pointer self) (c-string subprotocol) (bool deflate) (scheme-pointer to) (long capacity))
      "size_t len = 0;
       int status = wls_server_accept(self, subprotocol, deflate, to, (size_t)capacity, &len);
       C_return(status < 0 ? (long)status : (long)len);"))
  (define %reject
    (foreign-lambda* long ((c-pointer self) (int status) (scheme-pointer to) (long capacity))
      "size_t len = 0;
       int result = wl_server_handshake_reject(((wls *)self)->server, (uint16_t)status, wl_str(\"Access denied\\n\"), NULL, 0, to, (size_t)capacity, &len);
       C_return(result < 0 ? (long)result : (long)len);"))
  (define %refusal
    (foreign-lambda* long ((c-pointer self) (scheme-pointer to) (long capacity))
      "size_t len = 0;
       int status = wl_server_handshake_refusal(((wls *)self)->server, to, (size_t)capacity, &len);
       C_return(status < 0 ? (long)status : (long)len);"))
  (define %server-error
    (foreign-lambda* c-string ((c-pointer self))
      "static char text[256];
       wl_slice reason = {NULL, 0};
       wl_server_handshake_error(((wls *)self)->server, &reason);
       size_t len = reason.len < sizeof text - 1 ? reason.len : sizeof text - 1;
       if (len > 0) memcpy(text, reason.data, len);
       text[len] = 0;
       C_return(text);"))

  (define (request-part state part header)
    (let ((len (%request-len state part header)))
      (and (fx>= len 0)
           (let ((value (fresh-string len)))
             (%request-copy state part header value)
             value))))

  (define response-max 4096)

  (define (write-response ws response len)
    (when (fx> len 0)
      (handle-exceptions exn #f (write-handshake ws (substring response 0 len)))))

  ;; The time of the handshake, in milliseconds; -1: any.
  (define (handshake-ms) (if (> (connection-timeout) 0) (* 1000.0 (connection-timeout)) -1.0))

  ;; Writes a request or response.
  (define (write-handshake ws text)
    (let* ((out (websocket-out ws))
           (write (lambda () (write-string text #f out) (flush-output out) #f)))
      (if (websocket-out-fd ws)
          (write)
          (begin
            (start-port-thread ws 'wireloom-writer set-websocket-writing! write)
            (cond ((not (wait-for-port ws websocket-writing (handshake-ms)))
                   (fail 'connection-timeout "the handshake takes too long"))
                  ((websocket-writing ws) => abort))))))

  ;; Reads until `step` is done; returns its last result. The handshake has the time of `connection-timeout`.
  (define (handshake-loop ws step)
    (let ((deadline (and (>= (handshake-ms) 0) (+ (now-ms) (handshake-ms)))))
      (let loop ()
        (let ((state (websocket-state ws)))
          (cond ((and deadline (> (now-ms) deadline))
                 (fail 'connection-timeout "the handshake takes too long") #f)
                (else
                 (let ((result (read-some ws (if deadline (max 1.0 (- deadline (now-ms))) -1.0))))
                   (cond ((fx= result %eof) (fail 'unexpected-close "the peer closed during the handshake") #f)
                         ((fx= result %again) (loop))
                         (else
                          (let ((progress (step state)))
                            (if (fx= progress %again) (loop) progress)))))))))))

  (define (feed-string ws bytes)
    (let ((state (websocket-state ws)))
      (when state
        (unless (%feed state bytes (string-length bytes))
          (fail 'out-of-memory "there is no memory for input")))))

  ;; Bytes that the tcp unit has read ahead belong to this connection.
  (define (take-buffered ws)
    (if (websocket-in-fd ws)
        (let ((buffered (read-buffered (websocket-in ws))))
          (flush-output (websocket-out ws))
          (feed-string ws buffered)
          (fx> (string-length buffered) 0))
        #f))

  ;; Makes a connection of the websocket; frees it at once if that fails, with the threads of its ports.
  (define (shake-hands ws make)
    (handle-exceptions exn
        (begin
          (release ws)
          (if (common-error? exn) (begin (signal exn) #f) (abort exn)))
      (make ws (websocket-state ws))))

  ;; Upgrades the request that arrives on the ports. Returns the websocket; #f if the request was refused.
  (define (websocket-accept in out #!optional head)
    (shake-hands (make-websocket in out 'server) (lambda (ws state) (accept-request ws state head))))

  (define (accept-request ws state head)
    (check-made ws (%server-new state))
    (when head (feed-string ws head))
    (let* ((has-input (or (take-buffered ws) head))
           (first (if has-input (%server-step state) %again))
           (progress (if (fx= first %again) (handshake-loop ws %server-step) first))
           (response (make-string response-max)))
      (cond ((not progress) (release ws) #f)
            ((not (fx= progress %done))
             (write-response ws response (%refusal state response response-max))
             (fail (if (fx= (%request-len state 0 #f) -1) 'invalid-handshake 'protocol-error) (%server-error state))
             (release ws)
             #f)
            ((not ((accept-connection) (or (request-part state 2 #f) "")))
             ((access-denied))
             (write-response ws response (%reject state 403 response response-max))
             (release ws)
             #f)
            (else
             (let ((subprotocol (choose-subprotocol (request-part state 3 #f))))
               (set-websocket-resource! ws (request-part state 0 #f))
               (set-websocket-subprotocol! ws subprotocol)
               (set-websocket-headers! ws
                (map (lambda (name) (cons name (request-part state 0 name)))
                     '("Host" "Origin" "Cookie" "Authorization" "User-Agent")))
               (let ((len (%accept state subprotocol (permessage-deflate) response response-max)))
                 (check-made ws len)
                 (check-made ws (with-config %server-open state))
                 (write-response ws response len)
                 ws))))))

  ;; A connection that could not be made, for a parameter that it cannot have for example.
  (define (check-made ws status)
    (when (fx< status 0)
      (release ws)
      (abort (websocket-condition 'invalid-parameters
                                  (if (fx= status %failed) "there is no source of randomness" (%status-text status))))))

  (define (choose-subprotocol offered)
    (and offered
         (let ((names (string-split offered ", ")))
           (let loop ((supported (supported-subprotocols)))
             (cond ((null? supported) #f)
                   ((member (car supported) names) (car supported))
                   (else (loop (cdr supported))))))))

  ;; Host, Origin, Cookie, Authorization or User-Agent of the request; #f if it has none.
  (define (websocket-header ws name)
    (let ((found (assoc name (websocket-headers ws)))) (and found (cdr found))))

  (define (common-error? exn) ((condition-predicate 'websocket) exn))

  ;; Runs `body` with the websocket, and closes it and its ports, however the body is left. An error of the peer ends the body, as does
  ;; an error of the application, which is passed on.
  (define (run-websocket ws body)
    (set-websocket-owns-ports! ws #t)
    (start-timer ws)
    (let ((failure #f) (results '(#f)))
      (dynamic-wind
       void
       (lambda ()
         (parameterize ((current-websocket ws))
           (call-with-current-continuation
            (lambda (return)
              (with-exception-handler
               (lambda (exn)
                 (set! failure exn)
                 (return #f))
               (lambda () (receive values (body) (set! results values))))))))
       (lambda ()
         (handle-exceptions exn #f
           (if (and failure (not (common-error? failure)))
               (close-websocket ws code: 1011)
               (close-websocket ws)))))
      (cond ((and failure (or (propagate-common-errors) (not (common-error? failure))))
             (abort failure))
            (else (apply values results)))))

  (define (with-upgrade thunk prepare ports)
    (receive (in out head)
        (if (null? ports) ((upgrade-ports)) (values (car ports) (cadr ports) #f))
      (let* ((failure #f)
             (ws (call-with-current-continuation
                  (lambda (return)
                    (with-exception-handler
                     (lambda (exn) (set! failure exn) (return #f))
                     (lambda () (websocket-accept in out head)))))))
        (cond (ws
               (prepare ws)
               (run-websocket ws thunk))
              (else
               (close-port-pair in out)
               (when (and failure (or (propagate-common-errors) (not (common-error? failure))))
                 (abort failure))
               #f)))))

  (define (with-websocket thunk . ports) (with-upgrade thunk void ports))

  (define (with-concurrent-websocket thunk . ports) (with-upgrade thunk start-reader ports))

  ;;; The client

  (define %client-new
    (foreign-lambda int "wls_client_new" c-pointer c-string c-string c-string c-string bool))
  (define %client-step (foreign-lambda int "wls_client_step" c-pointer))
  (define %client-open
    (foreign-lambda* int ((c-pointer self) (double frame) (double message) (double ping) (double dead) (double close))
      "wl_ws_config config = wls_config(frame, message, ping, dead, close);
       C_return(wls_client_open(self, &config));"))
  (define %client-request-len
    (foreign-lambda* long ((c-pointer self))
      "wl_slice request = {NULL, 0};
       wl_client_handshake_request(((wls *)self)->client, &request);
       C_return((long)request.len);"))
  (define %client-request-copy
    (foreign-lambda* void ((c-pointer self) (scheme-pointer to))
      "wl_slice request = {NULL, 0};
       wl_client_handshake_request(((wls *)self)->client, &request);
       memcpy(to, request.data, request.len);"))
  (define %client-status
    (foreign-lambda* int ((c-pointer self))
      "uint16_t status = 0;
       wl_client_handshake_status(((wls *)self)->client, &status);
       C_return(status);"))
  (define %client-subprotocol
    (foreign-lambda* c-string ((c-pointer self))
      "static char text[256];
       wl_slice value = {NULL, 0};
       wl_client_handshake_header(((wls *)self)->client, wl_str(\"Sec-WebSocket-Protocol\"), &value);
       if (value.data == NULL || value.len >= sizeof text) C_return(NULL);
       memcpy(text, value.data, value.len);
       text[value.len] = 0;
       C_return(text);"))

  ;; Opens a websocket on ports that are connected with a server, also over TLS.
  (define (websocket-client in out host resource #!key origin subprotocol)
    (shake-hands (make-websocket in out 'client)
                 (lambda (ws state) (request-upgrade ws state host resource origin subprotocol))))

  (define (request-upgrade ws state host resource origin subprotocol)
    (let ((status (%client-new state host resource origin subprotocol (permessage-deflate))))
      (when (fx< status 0)
        (release ws)
        (abort (websocket-condition 'invalid-handshake "the request cannot be sent" host resource)))
      (let ((request (fresh-string (%client-request-len state))))
        (%client-request-copy state request)
        (write-handshake ws request))
      (let ((progress (handshake-loop ws %client-step)))
        (cond ((not progress) (release ws) #f)
              ((fx= progress %done)
               (set-websocket-resource! ws resource)
               (set-websocket-subprotocol! ws (%client-subprotocol state))
               (check-made ws (with-config %client-open state))
               ws)
              (else
               (let ((status (%client-status state)))
                 (release ws)
                 (fail 'handshake-refused "the server does not accept the websocket" status)
                 #f))))))

  ;; host, port and resource of ws://host[:port][/path][?query]
  (define (parse-uri uri)
    (let ((prefix "ws://"))
      (unless (and (fx> (string-length uri) 5) (string-ci=? (substring uri 0 5) prefix))
        (abort (websocket-condition 'invalid-uri "only ws:// is known; for TLS use websocket-client" uri)))
      (let* ((rest (substring uri 5))
             (end (let loop ((at 0))
                    (if (or (fx= at (string-length rest)) (memv (string-ref rest at) '(#\/ #\? #\#))) at (loop (fx+ at 1)))))
             (authority (substring rest 0 end))
             (resource (substring rest end))
             (colon (let loop ((at (fx- (string-length authority) 1)))
                      (cond ((fx< at 0) #f)
                            ((char=? (string-ref authority at) #\:) at)
                            ((char=? (string-ref authority at) #\]) #f)
                            (else (loop (fx- at 1)))))))
        (values (if colon (substring authority 0 colon) authority)
                (parse-port (if colon (substring authority (fx+ colon 1)) "") uri)
                authority
                (if (and (fx> (string-length resource) 0) (char=? (string-ref resource 0) #\/))
                    resource
                    (string-append "/" resource))))))

  (define (parse-port text uri)
    (let ((port (let loop ((digits (string->list text)) (port 0))
                  (cond ((null? digits) port)
                        ((and (char-numeric? (car digits)) (fx< port 65536))
                         (loop (cdr digits) (fx+ (fx* port 10) (fx- (char->integer (car digits)) 48))))
                        (else 65536)))))
      (cond ((string=? text "") 80)
            ((fx< port 65536) port)
            (else (abort (websocket-condition 'invalid-uri "the port is not valid" uri))))))

  (define (websocket-connect uri #!key origin subprotocol)
    (receive (host port authority resource) (parse-uri uri)
      (receive (in out) (tcp-connect host port)
        (let ((ws (handle-exceptions exn (begin (close-port-pair in out) (signal exn) #f)
                    (websocket-client in out authority resource origin: origin subprotocol: subprotocol))))
          (if ws (set-websocket-owns-ports! ws #t) (close-port-pair in out))
          ws))))

  (define (with-client-websocket uri thunk)
    (let ((ws (websocket-connect uri)))
      (and ws (run-websocket ws thunk)))))
